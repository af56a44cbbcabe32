"""The report half: boards, comparisons and pictures from records; never imports torch."""
