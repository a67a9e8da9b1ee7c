"""One file per actor: wires core to the bus. One process runs one actor; what dies is restarted from outside."""
