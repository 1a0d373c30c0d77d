"""Drawing a report; nothing here computes."""
