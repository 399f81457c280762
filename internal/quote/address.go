package quote

import "strings"

// hidden stands for a user and a password.
const hidden = "xxxxx"

// userIn is the user, and the password, in an address of etcd: what stands before the "@". It is
// empty if there is none, as in the path of a socket.
func userIn(address string) string {
	if strings.HasPrefix(address, "unix:") || strings.HasPrefix(address, "unixs:") {
		return ""
	}
	if _, host, has := strings.Cut(address, "://"); has {
		address = host
	}
	return address[:max(strings.LastIndexByte(address, '@'), 0)]
}

// HasUser reports whether an address of etcd has a user or a password in it. clientv3 does not log
// in by that, and it would be shown.
func HasUser(address string) bool { return userIn(address) != "" }

// Addresses are addresses of etcd as people may see them, with nothing of users and passwords.
func Addresses(addresses []string) []string {
	shown := make([]string, len(addresses))
	for i, address := range addresses {
		shown[i] = WithoutUsers(address, addresses[i:i+1])
	}
	return shown
}

// WithoutUsers is a text, such as an error of gRPC, without the users and passwords that are in
// addresses of etcd.
func WithoutUsers(text string, addresses []string) string {
	for _, address := range addresses {
		if user := userIn(address); user != "" {
			text = strings.ReplaceAll(text, user+"@", hidden+"@")
		}
	}
	return text
}
