"""The processes of a run: their collectives, sharded weights, and the heartbeat between them."""
