"""What a settings file says, as the things it stands for: shared by experiments and studies."""
