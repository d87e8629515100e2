"""Ways to make things fail, each in a file of its own. None of them knows the tests."""
