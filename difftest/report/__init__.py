"""A saved case as a folder for people upstream: a script without difftest, an issue, the environment, a picture."""
