"""Every family of language models in transformers that can be built small, put to the test of exactness."""
