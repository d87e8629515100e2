"""What `shardyard up --listen` adds: certificates, Redis over TLS, and what a machine that joins is given."""
