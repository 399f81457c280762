package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

func completionCommand() *command {
	return &command{
		name:  "completion",
		usage: "bash|zsh|fish",
		short: "print a script that completes commands and flags in a shell",
		text: `
  bash:  source <(etcdlock completion bash)
  zsh:   source <(etcdlock completion zsh), after compinit
  fish:  etcdlock completion fish | source`,
		offer: "bash zsh fish",
		flags: func(*flag.FlagSet) func(*app, call) error {
			return func(a *app, c call) error {
				if err := c.atMost(1); err != nil {
					return err
				}
				switch strings.Join(c.names, "") {
				case "bash":
					completeBash(a.stdout)
				case "zsh":
					fmt.Fprintln(a.stdout, "autoload -U +X bashcompinit && bashcompinit")
					completeBash(a.stdout)
				case "fish":
					completeFish(a.stdout)
				default:
					return misused("completion needs bash, zsh or fish")
				}
				return nil
			}
		},
	}
}

// flagsOf returns a command's flags and then etcd's flags, or only etcd's for nil.
func flagsOf(c *command) (flags []*flag.Flag) {
	etcd := flag.NewFlagSet("", flag.ContinueOnError)
	new(connection).flags(etcd)
	add := func(f *flag.Flag) { flags = append(flags, f) }
	if c != nil {
		own := flag.NewFlagSet("", flag.ContinueOnError)
		c.flags(own)
		own.VisitAll(add)
	}
	etcd.VisitAll(add)
	return flags
}

func dashedAll(flags []*flag.Flag) string {
	var words []string
	for _, f := range flags {
		words = append(words, dashed(f))
	}
	return strings.Join(words, " ")
}

// takesFile has the flags whose value is a file. The shell cannot know the values of the others.
const takesFile = "--cacert|--cert|--key"

// completeBash offers commands, then flags. After "--" it completes the command that run runs,
// with files in place of that command's own completion.
func completeBash(w io.Writer) {
	fmt.Fprintf(w, `_etcdlock() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word i
	for ((i = 1; i < COMP_CWORD; i++)); do
		word=${COMP_WORDS[i]}
		case $word in
		--)
			((i + 1 == COMP_CWORD)) && word=-c || word=-f
			COMPREPLY=($(compgen "$word" -- "$cur"))
			return ;;
		%s) [[ -n $verb ]] || verb=$word ;;
		esac
	done
	case $prev in
	%s) COMPREPLY=($(compgen -f -- "$cur")); return ;;
	esac
	case $verb in
`, strings.Join(names(), "|"), takesFile)
	for _, c := range commands() {
		words := strings.TrimSpace(c.offered() + " " + dashedAll(flagsOf(c)))
		fmt.Fprintf(w, "\t%s) word=%q ;;\n", c.name, words)
	}
	fmt.Fprintf(w, "\t*) word=%q ;;\n\tesac\n", strings.Join(names(), " ")+" "+dashedAll(flagsOf(nil)))
	fmt.Fprint(w, `	COMPREPLY=($(compgen -W "$word" -- "$cur"))
}
complete -F _etcdlock etcdlock
`)
}

// offered returns the words that may be a command's argument.
func (c *command) offered() string {
	if c.name == "help" {
		return strings.Join(names(), " ")
	}
	return c.offer
}

func completeFish(w io.Writer) {
	fmt.Fprint(w, "complete -c etcdlock -f\n")
	for _, f := range flagsOf(nil) {
		fmt.Fprintf(w, "complete -c etcdlock %s\n", fishFlag(f))
	}
	for _, c := range commands() {
		fmt.Fprintf(w, "complete -c etcdlock -n __fish_use_subcommand -a %s -d '%s'\n", c.name, c.short)
		in := fmt.Sprintf("complete -c etcdlock -n '__fish_seen_subcommand_from %s'", c.name)
		if words := c.offered(); words != "" {
			fmt.Fprintf(w, "%s -a '%s'\n", in, words)
		}
		own := flag.NewFlagSet("", flag.ContinueOnError)
		c.flags(own)
		own.VisitAll(func(f *flag.Flag) { fmt.Fprintf(w, "%s %s\n", in, fishFlag(f)) })
	}
}

func fishFlag(f *flag.Flag) string {
	value, text := valueAndText(f)
	option := "-l " + f.Name
	if len(f.Name) == 1 {
		option = "-s " + f.Name
	}
	if strings.Contains(takesFile, dashed(f)) {
		option += " -r -F"
	} else if value != "" {
		option += " -x"
	}
	return fmt.Sprintf("%s -d '%s'", option, strings.NewReplacer("\n", " ", "'", `\'`).Replace(text))
}
