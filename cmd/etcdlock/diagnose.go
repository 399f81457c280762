package main

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// diagnose says why an endpoint cannot be asked, by connections of its own: in most of these cases
// gRPC only says that the context has ended. It returns "" if it finds nothing.
func diagnose(cfg *tls.Config, endpoint string, within time.Duration) string {
	scheme, addr, found := strings.Cut(endpoint, "://")
	if !found {
		scheme, addr = "", endpoint
	}
	if strings.HasPrefix(scheme, "unix") {
		return ""
	}
	dial := func() (net.Conn, error) {
		conn, err := net.DialTimeout("tcp", addr, within)
		if err == nil {
			err = conn.SetDeadline(time.Now().Add(within))
		}
		return conn, err
	}
	conn, err := dial()
	if err != nil {
		return fmt.Sprintf("cannot be reached: %v", err)
	}
	defer conn.Close()
	if scheme != "https" && (scheme != "" || cfg == nil) {
		if greet(conn) == nil || !speaksTLS(dial) {
			return ""
		}
		return "it wants TLS, and was asked without: use https:// or --cacert"
	}
	if cfg == nil {
		cfg = new(tls.Config)
	}
	cfg = cfg.Clone()
	host, _, _ := net.SplitHostPort(addr)
	cfg.ServerName, cfg.NextProtos = cmp.Or(cfg.ServerName, host), []string{"h2"}
	// A TLS 1.3 server checks the client's certificate after the handshake.
	err = greet(tls.Client(conn, cfg))
	_, unverified := errors.AsType[*tls.CertificateVerificationError](err)
	alert, _ := errors.AsType[*net.OpError](err)
	switch {
	case err == nil:
		return ""
	case unverified:
		return fmt.Sprintf("its certificate is not believed: %v", err)
	case alert != nil && alert.Op == "remote error":
		return fmt.Sprintf("it refuses the client's certificate, or wants one (--cert, --key): %v", err)
	}
	plainly, dialed := dial()
	if dialed == nil {
		defer plainly.Close()
		if greet(plainly) == nil {
			return "it does not speak TLS: use http://, and no --cacert and --cert"
		}
	}
	return fmt.Sprintf("TLS: %v", err)
}

func speaksTLS(dial func() (net.Conn, error)) bool {
	conn, err := dial()
	if err != nil {
		return false
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{InsecureSkipVerify: true}).Handshake() == nil
}

// greet returns nil if the other side of a connection speaks HTTP/2: its first frame is SETTINGS,
// whatever the client sends (RFC 9113, 3.4).
func greet(conn net.Conn) error {
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	const settings = 4
	frame := [9]byte{3: settings} // the header of one without any
	if _, err := conn.Write(append([]byte(preface), frame[:]...)); err != nil {
		return err
	}
	if _, err := io.ReadFull(conn, frame[:]); err != nil {
		return err
	}
	if frame[3] != settings {
		return errors.New("no HTTP/2")
	}
	return nil
}
