package documents

// Program is a program of a reader, such as "python train.py": it uses the GPU of its lease for a moment, with --epochs for a minute.
// Burn is the path of gpusim-burn, and environment is what it has besides, as NAME=VALUE.
func Program(burn string, environment ...string) string {
	command := "env"
	for _, word := range append(environment, burn) {
		command += " '" + word + "'" // A path may have spaces.
	}
	return `#!/bin/sh
case " $* " in
*" --epochs "*) exec ` + command + ` --memory 1GiB --kernel 5ms --queue 5 --seconds 60 >/dev/null ;;
*) exec ` + command + ` --memory 64MiB --seconds 1 >/dev/null ;;
esac
`
}
