"""The server: HTTP in front of the engines of one or more models, with several APIs."""
