"""`shardyard join`: makes a node of this machine, with nothing but an address and a token to begin with."""
