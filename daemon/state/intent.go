package state

// Intent is what a proposed change is for. It decides what is recorded when the proposal is accepted, and on which GPUs and nodes its
// steps run.
type Intent string

// The intents. A proposal begins with what its caller asks for; InForce has what becomes of it.
const (
	ToApply      Intent = "put a spec in force"
	ToReapply    Intent = "change what is not as the spec in force says"
	ToRetry      Intent = "change one GPU to what the spec in force says"
	ToUnmanage   Intent = "take the spec out of force, and remove what gpushare maintains"
	ToRemoveRest Intent = "remove what is left of an unmanaged node"
)

// intentRule is what an intent means.
type intentRule struct {
	kind    string // of the change
	inForce Intent // what it becomes when what it asks for is in force already
	accepts bool   // another spec is recorded, as a new generation
	removes bool   // it removes what gpushare maintains: its steps run on every node
	oneGPU  bool   // other GPUs stay unchanged, and what waits for them
}

var intents = map[Intent]intentRule{
	ToApply:      {kind: KindApply, inForce: ToReapply, accepts: true},
	ToReapply:    {kind: KindApply, inForce: ToReapply},
	ToRetry:      {kind: KindRetry, inForce: ToRetry, oneGPU: true},
	ToUnmanage:   {kind: KindUnmanage, inForce: ToRemoveRest, accepts: true, removes: true},
	ToRemoveRest: {kind: KindUnmanage, inForce: ToRemoveRest, removes: true},
}

// Kind is the kind of the change.
func (i Intent) Kind() string { return intents[i].kind }

// InForce is what an intent becomes when what it asks for is in force already.
func (i Intent) InForce() Intent { return intents[i].inForce }

// Accepts reports whether another spec is put in force.
func (i Intent) Accepts() bool { return intents[i].accepts }

// Removes reports whether the change removes what gpushare maintains, instead of what the spec says.
func (i Intent) Removes() bool { return intents[i].removes }

// OneGPU reports whether the change is of one GPU.
func (i Intent) OneGPU() bool { return intents[i].oneGPU }
