// Package acknowledge keeps which conditions administrators acknowledged, by whom, and until when. It changes no condition: what is
// acknowledged still is so, and is no news.
package acknowledge
