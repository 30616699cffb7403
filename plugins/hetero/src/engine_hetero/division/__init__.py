"""The stage `division`: subgraphs, each on one device, without cycles between them."""
