"""Cases in processes of their own: environments, devices, deaths and what came before them."""
