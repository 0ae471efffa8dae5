"""Other tools that aviato speaks to; each module needs the package that it is named after only when it is used."""
