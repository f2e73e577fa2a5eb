package cli

import "strconv"

// gpuName is a GPU in a sentence: by its index, or by its UUID where the driver does not report the index, as of one that fell
// off the bus.
func gpuName(index int, uuid string) string {
	if index < 0 {
		return uuid
	}
	return "GPU " + strconv.Itoa(index)
}

// gpuArgument is a GPU as commands take it.
func gpuArgument(index int, uuid string) string {
	if index < 0 {
		return uuid
	}
	return strconv.Itoa(index)
}

// gpuColumn is the index of a GPU in a table.
func gpuColumn(index int) string {
	if index < 0 {
		return "-"
	}
	return strconv.Itoa(index)
}

// gpuWithUUID is a GPU in a description: its index with the UUID.
func gpuWithUUID(index int, uuid string) string {
	if index < 0 {
		return uuid
	}
	return strconv.Itoa(index) + " (" + uuid + ")"
}
