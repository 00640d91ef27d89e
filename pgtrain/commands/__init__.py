"""What follows the word `pgtrain`: each command is a module with `main(argv) -> exit code`, imported when called."""

# word -> (module, what it does)
COMMANDS = {
    "train": ("pgtrain.commands.train", "train a policy; the default, so the word can be left out"),
    "resume": ("pgtrain.commands.resume", "go on with a run that was stopped, or train it longer"),
    "eval": ("pgtrain.commands.evaluate", "play the policy of a run and report its return"),
    "check": ("pgtrain.commands.check", "look for what spoils the gradient of a differentiable env"),
    "gradients": ("pgtrain.commands.gradients", "variance, bias and cost of every gradient estimator"),
}
