"""How a completion is read: fences by CommonMark, what models do beside it, names of languages, prose against code."""
