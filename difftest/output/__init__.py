"""What a run tells: its events, and one handler for each form they take."""
