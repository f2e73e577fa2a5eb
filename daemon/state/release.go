package state

// KindRelease is the kind of change that gives the node back.
const KindRelease = "release"
