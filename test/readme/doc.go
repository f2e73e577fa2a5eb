// Package readme tests what a reader of README.md meets before anything is built: packaging/need.sh, which says what is missing and how to
// install it. here.sh runs README's commands on this host, distribution.sh on a fresh Debian or Ubuntu.
package readme
