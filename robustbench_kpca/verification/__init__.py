"""Compare the native attacks with the same attacks of other libraries, sample by sample."""
