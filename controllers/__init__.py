"""Programs on top of `informers`: a module here is a command of the same name."""
