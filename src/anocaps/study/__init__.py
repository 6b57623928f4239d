"""The paper's protocol: classes held out in turn, balanced test sets, one result per cell."""
