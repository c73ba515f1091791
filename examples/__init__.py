"""What the quickstarts run on, to be read and copied: data, rewards and models small enough for two CPU cores."""
