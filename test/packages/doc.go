// Package packages tests the scripts of the package against recording stand-ins of the programs that they start. test/tools
// builds the packages, test/node runs the check before a removal on a node, and test/vm installs, upgrades and removes the
// package on real systems.
package packages
