"""The loop and its parts: what is built, judged by credit, learnt, averaged, evaluated and warmed up."""
