"""Back-up and restore of a whole service: what its control Redis holds, and its storage directory.

    <back-up>/manifest.json            written last: a directory without it is no back-up
             /control.msgpack.zst      every key of the control Redis, as it was at one moment
             /files.jsonl.zst          directories and files of the storage directory, in the order of the walk
             /storage/...              the files, in their directories
             /shared/<number>          files that have several names in the storage directory, once each
             /admin.token              of a service that `shardyard up` runs

Redis is read first and at one moment, the files after it. A file that Redis knew of then is there afterwards, or was
deleted by a user meanwhile; what came later is left out where it would be in the way. So the service may run while it
is backed up. Keys are kept by their contents, not as Redis would dump them, so any version of Redis or Valkey takes
them back.

What users' programs have written is not trusted: both ways, directories are entered one at a time by their descriptors,
no link is followed, and nothing but a plain file is opened. A file that cannot be kept is left out, counted and named.
"""
