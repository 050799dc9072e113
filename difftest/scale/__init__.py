"""A campaign in parts: shards on several processes, machines and days, and their results joined again."""
