"""A declarative dataflow engine over Arrow tables: contracts, the graph of nodes, and the location of their files."""
