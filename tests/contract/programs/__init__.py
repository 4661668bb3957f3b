"""Programs that the tests here start, and what they say."""
