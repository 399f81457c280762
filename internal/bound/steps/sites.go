package steps

// sites are the places in the source, by their numbers. The overlay has all of them.
var sites []string
