"""Sessions: operations over connections of frames, as `wire.session` has them."""
