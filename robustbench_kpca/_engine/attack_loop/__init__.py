"""Run attacks: the loop over samples, the counting of passes and the definition of success."""
