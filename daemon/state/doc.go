// Package state is what the node should be, what was reached of it, and the change under way: values, and the questions
// one may ask them. It plans nothing and changes no hardware.
package state
