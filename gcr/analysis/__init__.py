"""What finished runs say: groups, statistics, tables."""
