"""Why a tick became what it became: facts read once, then sentences made of them."""
