"""What the router's scenarios need of their own; engine, campaign, shrinking and cases are those of a layer."""
