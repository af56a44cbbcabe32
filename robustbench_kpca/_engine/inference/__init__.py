"""Run a model: fixed batch size, checked inputs, and a journal so that an interrupted run can resume."""
