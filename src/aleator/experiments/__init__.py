"""The paper's tables and figures: experiments as data, a runner, a report."""
