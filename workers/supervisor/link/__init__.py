"""The authenticated connections between the supervisors of one attempt: each follower has one to the leader."""
