package job_test

import (
	"context"
	"fmt"
	"log"

	"github.com/atoll-run/atoll/backend/memory"
	"github.com/atoll-run/atoll/sandbox"
	"github.com/atoll-run/atoll/tool/job"
)

// A server of JSON-RPC over its standard streams, and a client that comes,
// goes, and comes again.
func Example() {
	ctx := context.Background()
	rt := memory.New(memory.Config{})
	defer rt.Close()
	sb, err := rt.Create(ctx, sandbox.Spec{})
	if err != nil {
		log.Fatal(err)
	}

	jobs, err := job.New(job.Config{Space: "box"})
	if err != nil {
		log.Fatal(err)
	}
	_, err = jobs.Start(ctx, sb, job.Spec{Name: "mcp", Cmd: sandbox.Cmd{Args: []string{"cat"}}, Stdin: true, Replace: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, message := range []string{`{"id":1}`, `{"id":2}`} {
		relay, err := jobs.Attach(ctx, sb, job.ByName("mcp"), job.Attachment{Lines: job.MaxLine, Busy: job.Queue})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := relay.Write(ctx, []byte(message+"\n")); err != nil {
			log.Fatal(err)
		}
		answer, err := relay.Next(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s\n", answer.Data)
		relay.Acknowledge() // or ask for the Next
		relay.Close()       // the connection ends
	}
	exit, err := jobs.Stop(ctx, sb, job.ByName("mcp"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(exit.Reason == sandbox.Exited || exit.Signal == sandbox.TERM)

	_, err = jobs.Attach(ctx, sb, job.ByName("mcp"), job.Attachment{})
	fmt.Println(sandbox.KindOf(err))
	// Output:
	// {"id":1}
	// {"id":2}
	// true
	// not-exist
}
