"""The `tghw` command: a thin shell over the other packages. One file a command; all output through `render`."""
