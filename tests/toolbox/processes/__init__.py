"""Child processes: their start and end, dialogues with them, forks, and what the system counts of them."""
