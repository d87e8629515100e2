-- Begins a session of a browser. No plain SET: the operator must be able to sign in while the server is short of memory.
local digest, owner, ttl_seconds = unpack(ARGV)
redis.call('SET', keys.session(digest), owner, 'EX', ttl_seconds)
return 'ok'
