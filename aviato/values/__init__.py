"""Values as people write them: text, names, quantities and hosts. Pure."""
