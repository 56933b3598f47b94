"""Where images come from, one file per data set."""
