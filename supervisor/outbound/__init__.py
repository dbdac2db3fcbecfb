"""Everything that is sent to other servers: pings, check-ins, revocations and notices."""
